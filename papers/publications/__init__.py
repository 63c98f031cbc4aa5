"""The five papers, a module each."""

from papers.publications import pipedream, pipemare, pipeoptim, timeprest, zhang

PAPERS = {module.PAPER.name: module.PAPER for module in (pipeoptim, pipemare, zhang, timeprest, pipedream)}

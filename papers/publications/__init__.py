"""The papers, a module each."""

from papers.publications import (
    asyncpp,
    basis_rotation,
    one_step_delay,
    paci,
    pipedream,
    pipemare,
    pipeoptim,
    timeprest,
    zhang,
)

_MODULES = (pipeoptim, pipemare, zhang, timeprest, pipedream, one_step_delay, asyncpp, paci, basis_rotation)
PAPERS = {module.PAPER.name: module.PAPER for module in _MODULES}

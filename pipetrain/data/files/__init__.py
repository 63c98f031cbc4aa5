"""Files whose content is not trusted, and the cache of the user."""

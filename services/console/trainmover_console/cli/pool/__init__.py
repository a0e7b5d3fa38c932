"""``trainmover pool``: how many standbys a job needs."""

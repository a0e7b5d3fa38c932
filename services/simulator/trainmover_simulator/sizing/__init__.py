"""How many standbys a job needs: a formula, and histories that are drawn to hold it against."""

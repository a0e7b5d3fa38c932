"""Reports of migrations: text, page, trace."""

"""Commands about one job, by what of it they are about: ``trainmover NOUN VERB``."""

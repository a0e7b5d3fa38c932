"""Changes of the membership at a step boundary: survivor, leaver and joiner."""

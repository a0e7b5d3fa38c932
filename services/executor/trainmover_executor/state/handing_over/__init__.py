"""State on its way to another rank: at once, or while training goes on."""

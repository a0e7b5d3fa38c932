"""What a program changes and nobody would carry: found in its first steps, and said."""

"""A bus that trusts nobody: roles and their permissions, keys, certificates, the server's file."""

from trainmover.security.folder import Setup, Written, client_folder, load, revoke, rotate, write
from trainmover.security.roles import SINGLE_ROLES, Permissions, Role, User, permissions, users

__all__ = [
    "SINGLE_ROLES",
    "Permissions",
    "Role",
    "Setup",
    "User",
    "Written",
    "client_folder",
    "load",
    "permissions",
    "revoke",
    "rotate",
    "users",
    "write",
]

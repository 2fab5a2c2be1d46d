"""The lab's commands. The command line loads them by name; nothing in node/ imports them."""

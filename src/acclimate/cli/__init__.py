"""The command line: a module per command. Nothing here imports torch until a command needs it."""

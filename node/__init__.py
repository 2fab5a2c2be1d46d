"""Effects: processes, sockets, directory and command line that carry out what protocol/ decides."""

"""Workers on other hosts: the client side, and the state server that answers it (`server/`)."""

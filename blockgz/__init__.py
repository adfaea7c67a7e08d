"""What both programs stand on: stores, Kafka connections, errors with exit codes, the shell of a program."""

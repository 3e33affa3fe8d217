"""Mail: messages whose peers are transports, and which know every recipient."""

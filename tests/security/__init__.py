"""What must never happen: code run from data, SQL made from values, secrets shown, files open to everyone."""

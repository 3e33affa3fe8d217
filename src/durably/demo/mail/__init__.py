"""The demo of mail: a shop's letters through two SMTP servers, and a ledger of who got which."""

"""Mail: `app.mail`, and what its users name."""

from durably.mail.attachments import Attachment
from durably.mail.compose import MailOptions
from durably.mail.dkim import Dkim
from durably.mail.info import About, MailInfo, MailSummary, RecipientInfo
from durably.mail.library import TemplateInfo, Templates
from durably.mail.mail import Mail
from durably.mail.suppressions import SuppressionInfo, Suppressions
from durably.mail.templates import Rendered
from durably.stores.operations.mail import Accepted

__all__ = [
    "About",
    "Accepted",
    "Attachment",
    "Dkim",
    "Mail",
    "MailInfo",
    "MailOptions",
    "MailSummary",
    "RecipientInfo",
    "Rendered",
    "SuppressionInfo",
    "Suppressions",
    "TemplateInfo",
    "Templates",
]

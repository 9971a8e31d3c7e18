"""The door for pods that our scheduling gate holds back: the webhook, the placer, what becomes of those that wait."""

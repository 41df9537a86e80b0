"""A small character-level transformer."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention


class Block(nn.Module):
    """Look back at the text so far, then think about it."""

    def __init__(self, width: int, *, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention = nn.LayerNorm(width)
        self.queries_keys_values = nn.Linear(width, 3 * width)
        self.after_attention = nn.Linear(width, width)
        self.thinking = nn.Sequential(
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return *x*, of shape (batch, length, width), with what the block adds to it."""
        batch, length, width = x.shape
        projected = self.queries_keys_values(self.before_attention(x))
        by_head = projected.view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = by_head.permute(2, 0, 3, 1, 4)
        seen = scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.after_attention(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.thinking(x)


class CharTransformer(nn.Module):
    """Guess the next character, for every position of a text at once."""

    def __init__(self, vocabulary: int, *, width: int, layers: int, context: int, heads: int = 4) -> None:
        super().__init__()
        self.context = context
        self.characters = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads=heads) for _ in range(layers)))
        self.guess = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, vocabulary))

    def forward(self, text: Tensor, following: Tensor) -> Tensor:
        """Return the mean loss in nats per character; *following* is *text* one character later."""
        return cross_entropy(self.logits(text).flatten(0, 1), following.flatten())

    def logits(self, text: Tensor) -> Tensor:
        """Return the probability of each character to follow each position of *text*."""
        positions = torch.arange(text.shape[1])
        scores: Tensor = self.guess(self.blocks(self.characters(text) + self.positions(positions)))
        return scores

    @torch.no_grad()
    def write(self, prompt: Tensor, *, characters: int, seed: int) -> Tensor:
        """Continue *prompt*, of one dimension, by so many *characters*, and return those."""
        random = torch.Generator().manual_seed(seed)
        text = prompt.long()
        for _ in range(characters):
            scores = self.logits(text[-self.context :].unsqueeze(0))[0, -1]
            chances = torch.softmax(scores / 0.7, dim=0)
            text = torch.cat([text, torch.multinomial(chances, 1, generator=random)])
        return text[len(prompt) :]

<?php

namespace App\Values;

/** Its `__serialize` uses integer keys. */
final class Packed
{
    public function __construct(private string $left, private array $right) {}

    public function __serialize(): array
    {
        return [$this->left, $this->right, 'name' => 'packed', 7 => true];
    }

    public function __unserialize(array $data): void
    {
        [$this->left, $this->right] = $data;
    }
}

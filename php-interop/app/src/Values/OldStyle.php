<?php

namespace App\Values;

use Serializable;

/** Only the old interface: PHP writes `C:` and any text that the class chooses. */
final class OldStyle implements Serializable
{
    public function __construct(private string $text) {}

    public function serialize(): ?string
    {
        return 'custom;{"text":"'.$this->text.'"}';
    }

    public function unserialize(string $data): void
    {
        $this->text = substr($data, 16, -2);
    }
}

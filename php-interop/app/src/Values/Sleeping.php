<?php

namespace App\Values;

/** Its `__sleep` leaves one property out. */
class Sleeping
{
    public bool $awake = true;

    public function __construct(protected string $kept, private string $forgotten) {}

    public function __sleep(): array
    {
        return ['kept', 'awake'];
    }

    public function __wakeup(): void
    {
        $this->forgotten = 'made again';
    }
}

<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;

/** Typed properties; one is never initialised. */
class Typed implements ShouldQueue
{
    use Queued;

    public int $count;

    public int $never;

    public ?string $assignedNull;

    public ?string $defaultNull = null;

    public int|string|null $union;

    public int|float $ratio = 1.0;

    public iterable $list = [];

    public ?self $other = null;

    public function __construct()
    {
        $this->count = 3;
        $this->assignedNull = null;
        $this->union = 'either';
    }
}

<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldBeUnique;
use Illuminate\Contracts\Queue\ShouldQueue;

/** Takes a unique lock. */
class Unique implements ShouldBeUnique, ShouldQueue
{
    use Queued;

    public int $uniqueFor = 60;

    public function __construct(public string $key) {}

    public function uniqueId(): string
    {
        return $this->key;
    }
}

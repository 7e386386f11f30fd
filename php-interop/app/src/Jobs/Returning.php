<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldBeUniqueUntilProcessing;
use Illuminate\Contracts\Queue\ShouldQueue;

/** Methods that only return something. */
class Returning implements ShouldBeUniqueUntilProcessing, ShouldQueue
{
    use Queued;

    public $tries = 2;

    public $backoff = 9;

    private $seconds = 40;

    public function __construct(protected int $number, public ?string $place = null) {}

    public function tries(): int
    {
        return 8;
    }

    /** @return list<int> */
    public function backoff(): array
    {
        return [3, 30, ];
    }

    public function uniqueFor(): int
    {
        // A comment must not confuse the exporter.
        return $this->seconds;
    }

    public function uniqueId()
    {
        return "{$this->number}-$this->place/é";
    }

    public function displayName(): string
    {
        return static::class.':'.(string) $this->number;
    }
}

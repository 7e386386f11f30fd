<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;

/** One step of a chain. */
class ChainMember implements ShouldQueue
{
    use Queued;

    public function __construct(public int $step = 0, protected string $note = '') {}
}

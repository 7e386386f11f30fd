<?php

namespace App\Jobs;

use Illuminate\Bus\Batchable;
use Illuminate\Contracts\Queue\ShouldQueue;

/** Member of a batch. */
class BatchMember implements ShouldQueue
{
    use Queued;

    use Batchable;

    public function __construct(public int $row) {}
}

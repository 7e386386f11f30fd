<?php

namespace App\Jobs;

use App\Seen;
use Illuminate\Contracts\Queue\ShouldQueue;

/** The smallest possible queued class. */
class NoTraits implements ShouldQueue
{
    public $order = 20;

    protected $guarded = ['x' => 1.5];

    public function handle(): void
    {
        Seen::record($this);
    }
}

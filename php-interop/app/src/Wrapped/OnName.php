<?php

namespace App\Wrapped;

use App\Seen;
use Illuminate\Contracts\Queue\ShouldQueue;

/** A listener of events that are only a name. */
class OnName implements ShouldQueue
{
    public function handle(...$values): void
    {
        Seen::record(['values' => $values]);
    }

    public function any(...$values): void
    {
        Seen::record(['values' => $values]);
    }
}

<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;

/** Has a display name. */
class DisplayName implements ShouldQueue
{
    use Queued;

    public function __construct(public int $invoice) {}

    public function displayName(): string
    {
        return 'Invoice #'.$this->invoice.' (send)';
    }
}

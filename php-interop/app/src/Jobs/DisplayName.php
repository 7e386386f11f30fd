<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;

/** Has another name for people than its class. */
class DisplayName implements ShouldQueue
{
    use Queued;

    public function __construct(public int $invoice) {}

    public function displayName(): string
    {
        return 'Invoice #'.$this->invoice.' (send)';
    }
}

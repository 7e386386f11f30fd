<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;

/** The job refers to itself. */
class CycleToJob implements ShouldQueue
{
    use Queued;

    public $self;

    public array $list;

    public function __construct()
    {
        $this->self = $this;
        $this->list = [$this];
    }
}

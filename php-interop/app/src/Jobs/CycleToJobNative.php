<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;

/** The job refers to itself, without SerializesModels. */
class CycleToJobNative implements ShouldQueue
{
    use QueuedNatively;

    public $self;

    public array $list;

    public function __construct()
    {
        $this->self = $this;
        $this->list = ['me' => $this];
    }
}

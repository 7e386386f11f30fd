<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldBeUnique;
use Illuminate\Contracts\Queue\ShouldQueue;

class UniqueByProperty implements ShouldBeUnique, ShouldQueue
{
    use Queued;

    public $uniqueId = 'the class';

    public $uniqueFor = 50;
}

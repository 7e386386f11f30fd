<?php

namespace App\Jobs;

use App\Values\Labelled;
use App\Values\Point;
use Illuminate\Contracts\Queue\ShouldQueue;

/** One object in several places, where the job itself counts in the numbering of references. */
class SharedReferenceNative implements ShouldQueue
{
    use QueuedNatively;

    public $first;

    public $second;

    public array $list;

    public $between = 'a value between';

    public $third;

    public function __construct()
    {
        $point = new Point(1, 1.5);
        $this->first = $point;
        $this->second = $point;
        $this->list = ['x', $point, ['deep' => $point], new Labelled('shares too', $point)];
        $this->third = $point;
    }
}

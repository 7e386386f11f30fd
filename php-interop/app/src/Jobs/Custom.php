<?php

namespace App\Jobs;

use App\Values\OldStyle;
use App\Values\Point;
use Illuminate\Contracts\Queue\ShouldQueue;

/** An object with a custom body (`C:`). */
class Custom implements ShouldQueue
{
    use Queued;

    public $old;

    public $after;

    public $again;

    public function __construct()
    {
        $point = new Point(4, 2.0);
        $this->old = new OldStyle('zażółć');
        $this->after = [$point, $this->old, $point];
        $this->again = $point;
    }
}

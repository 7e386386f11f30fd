<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;

/** Only public properties. */
class Plain implements ShouldQueue
{
    use Queued;

    public function __construct(
        $number = 42,
        $title = 'Hello',
        $flag = true,
        $nothing = null,
        $tags = ['a', 'b'],
    ) {
        $this->number = $number;
        $this->title = $title;
        $this->flag = $flag;
        $this->nothing = $nothing;
        $this->tags = $tags;
    }

    public $number;

    public $title;

    public $flag;

    public $nothing;

    public $tags;
}

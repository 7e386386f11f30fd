<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldQueue;

/** Text with NUL bytes. */
class NulText implements ShouldQueue
{
    use Queued;

    public $text;

    public array $list;

    public function __construct()
    {
        $this->text = "a\0b";
        $this->list = ["\0", "\0\0\0", "\0*\0like a property", "k\0ey" => "v\0alue", "end\0"];
    }
}

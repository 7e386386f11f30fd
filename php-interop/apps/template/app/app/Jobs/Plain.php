<?php

namespace App\Jobs;

use App\Support\Clock;
use Illuminate\Bus\Queueable;
use Illuminate\Contracts\Queue\ShouldQueue;
use Illuminate\Foundation\Bus\Dispatchable;
use Illuminate\Queue\InteractsWithQueue;
use Illuminate\Queue\SerializesModels;

class Plain implements ShouldQueue
{
    use Dispatchable;
    use InteractsWithQueue;
    use Queueable;
    use SerializesModels;

    public static $instances = 0;

    public $title = 'untitled';

    protected $options = ['retry' => true, 'levels' => [1, 2.5, null]];

    private $secretNumber = 42;

    public function __construct($title = 'untitled')
    {
        $this->title = $title;
    }

    public function handle(Clock $clock, $anything = null)
    {
    }
}

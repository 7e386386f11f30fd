<?php

namespace App\Jobs;

use App\Jobs\Concerns\Countable;
use Illuminate\Contracts\Queue\ShouldQueue;

/** Without SerializesModels: PHP's own order, private properties of parents too. */
abstract class NativeBase implements ShouldQueue
{
    use Countable;

    public $first = 'base';

    protected $second = 'base';

    private $hidden = 'base';

    public $queue = 'base-queue';
}

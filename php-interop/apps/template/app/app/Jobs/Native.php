<?php

namespace App\Jobs;

use Illuminate\Bus\Queueable;

class Native extends NativeBase
{
    use Concerns\Countable;

    public $own = 1;

    public $second = 'child';

    private $hidden = 'child';

    public function handle()
    {
    }
}

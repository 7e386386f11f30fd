<?php

namespace App\Jobs;

use Illuminate\Queue\SerializesModels;

class ModelsChild extends NativeBase
{
    use SerializesModels;

    public $own = 1;

    private $hidden = 'child';

    public function handle()
    {
    }
}

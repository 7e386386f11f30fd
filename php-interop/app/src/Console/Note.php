<?php

namespace App\Console;

use App\Seen;
use Illuminate\Console\Command;

class Note extends Command
{
    protected $signature = 'interop:note {text=nothing} {--times=1}';

    protected $description = 'Say in the Redis list `interop:seen` that this command ran';

    public function handle(): int
    {
        Seen::record([
            'class' => self::class,
            'text' => $this->argument('text'),
            'times' => $this->option('times'),
        ]);

        return 0;
    }
}

<?php

namespace App\Console;

use App\Casts;
use App\Document;
use Illuminate\Console\Command;

class Cast extends Command
{
    protected $signature = 'interop:cast {kind?}';

    protected $description = 'Queue a broadcast event; without a kind, print their names as JSON';

    public function handle(): int
    {
        $casts = Casts::all();
        if ($this->argument('kind') !== null) {
            $casts[$this->argument('kind')]();
        }
        $this->output->writeln(Document::json(array_keys($casts)), $this->output::OUTPUT_RAW);

        return 0;
    }
}

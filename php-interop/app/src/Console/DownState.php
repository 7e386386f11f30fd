<?php

namespace App\Console;

use App\Document;
use Illuminate\Console\Command;

class DownState extends Command
{
    protected $signature = 'interop:down-state';

    protected $description = 'Print whether the app is down for maintenance, as JSON';

    public function handle(): int
    {
        $this->output->writeln(Document::json(['down' => $this->laravel->isDownForMaintenance()]));

        return 0;
    }
}

<?php

namespace App\Console;

use App\Catalogue;
use App\Document;
use App\Recorder;
use Illuminate\Console\Command;

class Dispatch extends Command
{
    protected $signature = 'interop:dispatch {kind=all} {--queue=} {--count=1}';

    protected $description = 'Put jobs of a kind (or of all) on the queue; a JSON line for each';

    protected bool $describe = false;

    public function handle(): int
    {
        $recorder = new Recorder($this->describe);

        foreach (Catalogue::kinds($this->argument('kind')) as $kind) {
            for ($n = (int) $this->option('count'); $n > 0; $n--) {
                Catalogue::dispatch($kind, $this->option('queue'));
                foreach ($recorder->take() as $record) {
                    $this->output->writeln(Document::json(
                        ['kind' => $kind, 'category' => Catalogue::category($kind)] + $record
                    ), $this->output::OUTPUT_RAW);
                }
            }
        }

        return 0;
    }
}

<?php

namespace App\Console;

use App\Document;
use Illuminate\Console\Command;
use Symfony\Component\Console\Input\ArgvInput;
use Symfony\Component\Console\Output\BufferedOutput;

class Serve extends Command
{
    protected $signature = 'interop:serve';

    protected $description = 'Run the commands that stand on standard input, one JSON list of arguments per line';

    public function handle(): int
    {
        while (($line = fgets(STDIN)) !== false) {
            $output = new BufferedOutput;
            try {
                $code = $this->getApplication()->run(
                    new ArgvInput(['artisan', ...json_decode($line, true, 8, JSON_THROW_ON_ERROR)]),
                    $output
                );
                $text = $output->fetch();
            } catch (\Throwable $e) {
                [$code, $text] = [1, (string) $e];
            }
            $this->output->writeln(Document::json(['code' => $code, 'text' => $text]), $this->output::OUTPUT_RAW);
        }

        return 0;
    }
}

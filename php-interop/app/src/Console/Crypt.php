<?php

namespace App\Console;

use App\Document;
use Illuminate\Console\Command;
use Illuminate\Contracts\Encryption\DecryptException;
use Illuminate\Support\Facades\Crypt as Encrypter;

class Crypt extends Command
{
    protected $signature = 'interop:crypt {do} {text}';

    protected $description = 'encrypt or decrypt a text that is given and printed in base64';

    public function handle(): int
    {
        $text = base64_decode($this->argument('text'));
        try {
            $result = ['result' => base64_encode(match ($this->argument('do')) {
                'encrypt' => Encrypter::encryptString($text),
                'decrypt' => Encrypter::decryptString($text),
            })];
        } catch (DecryptException $e) {
            $result = ['error' => $e->getMessage()];
        }
        $this->output->writeln(Document::json($result), $this->output::OUTPUT_RAW);

        return 0;
    }
}

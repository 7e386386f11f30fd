<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldBeEncrypted;
use Illuminate\Contracts\Queue\ShouldQueue;

/** Only an encrypted command can hold text that is not UTF-8. */
class EncryptedBytes implements ShouldBeEncrypted, ShouldQueue
{
    use Queued;

    public array $binary;

    public function __construct()
    {
        $this->binary = ["\xff\xfe\x00\x80", "caf\xe9", 'text', implode('', array_map('chr', range(0, 255)))];
    }
}

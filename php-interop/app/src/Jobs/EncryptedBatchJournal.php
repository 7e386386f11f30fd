<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldBeEncrypted;

/** A {@see BatchJournal} whose command is encrypted. */
class EncryptedBatchJournal extends BatchJournal implements ShouldBeEncrypted {}

<?php

namespace App\Jobs;

use Illuminate\Contracts\Queue\ShouldBeUnique;

/** A {@see BatchJournal} that is unique, for which batches take no lock. */
class UniqueBatchJournal extends BatchJournal implements ShouldBeUnique
{
    public $uniqueId = 'batch';
}

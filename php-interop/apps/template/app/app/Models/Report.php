<?php

namespace App\Models;

use Illuminate\Database\Eloquent\Model;

/** Cannot be made without arguments. */
class Report extends Model
{
    public function __construct(string $title)
    {
        parent::__construct(['title' => $title]);
    }
}
